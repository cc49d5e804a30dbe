-- Return the note of a pause's decision with the votes that it got, in their order. A note and a vote
-- are JSON objects.
local function pause_votes(key, note)
  local flat, held, votes = redis.call('HGETALL', key), {}, {}
  for i = 1, #flat, 2 do held[flat[i]] = flat[i + 1] end
  for name, vote in pairs(held) do
    local actor = string.match(name, '^vote:(.*)$')
    if actor then
      local at, number = string.match(held['seat:' .. actor], '(%d+) (%d+)')
      votes[#votes + 1] = { number = tonumber(number), row = '[' .. at .. ',' .. vote .. ']' }
    end
  end
  if #votes == 0 then return note end
  table.sort(votes, function(a, b) return a.number < b.number end)
  for i, each in ipairs(votes) do votes[i] = each.row end
  return string.sub(note, 1, -2) .. ',"votes":[' .. table.concat(votes, ',') .. ']}'
end
