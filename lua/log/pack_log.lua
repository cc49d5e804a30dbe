-- Give back what the server holds ready for the next rows of a short log: 4 KB for its first block. A copy
-- of a stream takes what its rows take, and so does one that was loaded. Rows, their numbers and the lifetime
-- stay as they are, so a repetition does no harm. A server or a user that cannot do it leaves the log as it is.
-- KEYS rows   stream
-- KEYS spare  stream: its copy; there for the length of this call
-- Returns
--   {'OK', packed}  1 if it takes less now
-- @each

local used = redis.pcall('MEMORY', 'USAGE', rows)
-- Below that there is no such block. Above, what it holds ready is little of it.
if type(used) ~= 'number' or used < 4096 or used > 8192 then return { 'OK', 0 } end
if redis.pcall('COPY', rows, spare, 'REPLACE') ~= 1 then return { 'OK', 0 } end
local moved = redis.pcall('RENAME', spare, rows)
if moved.err then
  redis.call('DEL', spare)
  return { 'OK', 0 }
end
return { 'OK', 1 }
