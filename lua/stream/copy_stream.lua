-- Copy rows into a fork, and open it in the end. A repetition skips the rows that are there.
-- KEYS info  hash: see create_stream
-- KEYS rows  stream: data; entry <n>-<ms>
-- ARGV stream_id  of the fork
-- ARGV hold_ms    int: its lifetime until the next call
-- ARGV opening    flag: all rows are copied
-- ARGV part       data of a row of its own, of which the origin has more; '' for none
-- ARGV data       data of the first row of its own; '' for none
-- ARGV copied..   long: place and data of a row, in turn
-- Returns
--   {'OK', view}       copied, and open if it was to be
--   {'COUNTED', view}  another call has opened it
--   {'MISSING'}        it is not there any more, or is another one
-- @include now_text
-- @include stream_keep
-- @include stream_named
-- @include stream_put
-- @lasting

local fork = stream_named(info, true)
if not fork or fork.id ~= stream_id then return { 'MISSING' } end
if fork.state ~= 'copying' then return { 'COUNTED', fork.view } end
local last, bytes = fork.last, fork.bytes
for i = copied_from, #copied, 2 do
  if stream_number(copied[i]) > stream_number(last) then
    redis.call('XADD', rows, copied[i], 'data', copied[i + 1])
    last, bytes = copied[i], bytes + #copied[i + 1]
  end
end
if opening then
  for _, own in ipairs({ part, data }) do
    if own ~= '' then last, bytes = stream_put(rows, last, now_text(), own), bytes + #own end
  end
end
redis.call('HSET', info, 'last', last, 'bytes', bytes, 'state', opening and '' or 'copying')
if opening then stream_keep(info, rows, fork.life, fork.expires) else stream_keep(info, rows, hold_ms, '') end
return { 'OK', stream_view(info) }
