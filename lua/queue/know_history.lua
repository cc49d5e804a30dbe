-- Return what distinguishes this history of the queues from every other: the server's process, its line of
-- replication, and a random id in the queues' slot. A lost history has another one. A repetition finds the id.
-- KEYS history  hash: id, picking: when arq's own runner last picked jobs, in ms
-- ARGV id       random; taken if there is none
-- ARGV picking  flag: arq's own runner picks jobs, and what it has picked is listed nowhere
-- Returns
--   {'OK', history, picking}  '' from a server that does not say who it is; 1 if arq's runner picked jobs lately
-- @include now_ms

local now, held = now_ms(), redis.call('HMGET', history, 'id', 'picking')
if not held[1] then redis.call('HSET', history, 'id', id) end
-- Once in an hour is enough of what counts for a day.
local since = held[2] and now - held[2]
if picking and not (since and since >= 0 and since < 3600000) then
  redis.call('HSET', history, 'picking', string.format('%.0f', now))
  since = 0
end
if redis.call('PTTL', history) < 31536000000 then redis.call('PEXPIRE', history, 34560000000) end
local about, line = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'replication')
local run = type(about) == 'string' and string.match(about, 'run_id:(%w+)')
local replication = type(line) == 'string' and string.match(line, 'master_replid:(%w+)')
if not run or not replication then return { 'OK', '', 0 } end
local lately = since and since < 86400000 and 1 or 0
return { 'OK', table.concat({ run, replication, held[1] or id, lately }, ' '), lately }
