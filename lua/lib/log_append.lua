-- Append rows to a log: once per id, in the given order, told, trimmed and kept alive in the same step.
-- `log` names rows, ids, topic_rows and channel, and has topic, max_rows and ttl_ms; announce is '0'
-- to tell nobody; keeps_old says that no row is too old; head is there if the caller has read it.
-- `rows_in` holds id and row in turn, from a place on. Returns each row's number, and how many are new.
-- @include log_head
-- @include log_row
-- @include log_trim
-- @include log_topic
local function log_append(log, rows_in, from, now)
  if #rows_in < from then return {}, 0 end
  local found = redis.call('HMGET', log.ids, '', rows_in[from])
  local was, known, numbers, new = found[1], found[2], {}, 0
  local head = log.head or log_head(was)
  local prolonged = head.expires - now < log.ttl_ms
  if prolonged then head.expires = now + log.ttl_ms + math.floor(log.ttl_ms / 2) log_text(head) end
  for i = from, #rows_in, 2 do
    if i > from then known = redis.call('HGET', log.ids, rows_in[i]) end
    if not known then was, new = log_row(log, head, was, rows_in[i], rows_in[i + 1], now), new + 1 end
    numbers[#numbers + 1] = tonumber(known) or head.last
  end
  if new == 0 then return numbers, 0 end
  if log_trim(log, head, now) then redis.call('HSET', log.ids, '', log_text(head)) end
  local expires = string.format('%.0f', head.expires)
  if prolonged then for _, key in ipairs({ log.rows, log.ids }) do redis.call('PEXPIREAT', key, expires) end end
  if log.topic ~= '' then log_topic(log, head, expires) end
  return numbers, new
end
