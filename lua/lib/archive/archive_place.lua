-- Keep a thing's place in an index for as long as the thing is held. A place that is not there stays away.
local function archive_place_hold(index, member, now, hold_ms)
  redis.call('ZADD', index, 'XX', 'GT', string.format('%.0f', (now + hold_ms) * 1000), member)
  redis.call('PEXPIRE', index, hold_ms, 'GT')
end

-- Undo that, unless something else has changed the place since. `held` is until when the thing was held, `ends`
-- until when it lives now.
local function archive_place_release(index, member, held, ends)
  if tonumber(redis.call('ZSCORE', index, member) or -1) ~= held * 1000 then return end
  redis.call('ZADD', index, string.format('%.0f', ends * 1000), member)
  local last = redis.call('ZRANGE', index, -1, -1, 'WITHSCORES')[2]
  if last ~= 'inf' then redis.call('PEXPIREAT', index, string.format('%.0f', math.ceil(tonumber(last) / 1000))) end
end
