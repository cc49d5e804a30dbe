-- What a log knows of itself, kept in its ids under the empty id. Rows first..last are there;
-- all of them expire at `expires`; row first-1 was dropped and had the time `before_ms`. An absent
-- log is an empty one that has given no number yet.
local function log_head(ids)
  local names = { 'first', 'first_ms', 'last', 'last_ms', 'expires', 'before_ms' }
  local head, place = { first = 1, first_ms = 0, last = 0, last_ms = 0, expires = 0, before_ms = 0 }, 0
  head.text = redis.call('HGET', ids, '') or ''
  for number in string.gmatch(head.text, '%d+') do
    place = place + 1
    head[names[place]] = tonumber(number)
  end
  return head
end
