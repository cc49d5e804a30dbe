-- Take from a claim the right to run its task, before its permit goes to another task: a run whose lease has run
-- out can renew it and write no more, and a worker that has not begun finds the start refused. Another version is
-- not made of the record. A repetition does no harm.
-- KEYS task     hash: status, version, retired
-- KEYS lease    hash: owner, claim, epoch, expires, length
-- ARGV version  of the record as it was read
-- ARGV claimed  int: when the job was claimed, in ms
-- Returns
--   {'OK', retired}  1 if it has none now; 0 if the task has moved on, or its owner has renewed its lease
-- @include lease_left
-- @include now_ms
-- @include is_ahead

local was = redis.call('HMGET', task, 'status', 'version', 'retired')
local now = now_ms()
-- A later mark stays, unless it is from before the clock was set back.
local function mark()
  local before = tonumber(was[3] or 0)
  if claimed > before or is_ahead(before, now) then
    redis.call('HSET', task, 'retired', string.format('%.0f', claimed))
  end
end
if was[2] ~= version then return { 'OK', 0 } end
if was[1] == 'PENDING' then
  mark()
  return { 'OK', 1 }
end
if was[1] ~= 'RUNNING' or lease_left(lease, now) > 0 then return { 'OK', 0 } end
-- The epoch stays, so that the next owner's is greater, and an owner, who counts as dead at the next start.
mark()
redis.call('HSET', lease, 'owner', '-', 'claim', '-')
return { 'OK', 1 }
