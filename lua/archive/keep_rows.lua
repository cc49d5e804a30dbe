-- Keep a log from expiring before it is archived, or let it expire when it would have. A repetition does the same.
-- KEYS rows      stream of the log
-- KEYS ids       hash: its ids; '' -> head
-- ARGV least_ms  int: a lifetime that is shorter is extended; 0 lets the log expire
-- ARGV hold_ms   int: how long it is then
-- Returns
--   {'OK', changed}  1 if a lifetime was changed
-- @include now_ms
-- @include log_head

local left, now = redis.call('PTTL', rows), now_ms()
local ends = now + hold_ms
if least_ms > 0 then
  if left < 0 or left >= least_ms then return { 'OK', 0 } end
else
  -- A row that is appended extends the head's time, and both keys' lifetimes with it.
  ends = math.max(log_head(redis.call('HGET', ids, '')).expires, now + 60000)
  if left < 0 or ends >= now + left then return { 'OK', 0 } end
end
for _, key in ipairs({ rows, ids }) do redis.call('PEXPIREAT', key, string.format('%.0f', ends)) end
return { 'OK', 1 }
