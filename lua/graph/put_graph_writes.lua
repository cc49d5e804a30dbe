-- Add what a task wrote to the pending writes of a checkpoint. A write of a task and an index is kept as
-- it came first; one of a negative index is replaced. A repetition changes nothing.
-- KEYS thread   hash: w<place> list of writes, w<place> <number> a write; owner, claim, epoch, expires, length
-- KEYS order    zset: places, by name
-- ARGV mark     of the writer's claim on the thread, '' for none
-- ARGV listed   flag: the caller has listed the thread lately
-- ARGV place    of the checkpoint: namespace and id
-- ARGV task     id of the task
-- ARGV ttl_ms   int: of the thread, from now
-- ARGV writes.. long: index, channel and value of each
-- Returns
--   {'OK'}
--   {'MISSING'}        there is no such thread: list it first; nothing was written
--   {'LOST', epoch}    another claim has the thread; nothing was written
--   {'HELD', left_ms}  the caller has no claim, and another has; nothing was written
-- @include graph_refusal
-- @lasting

local refused = graph_refusal(thread, mark)
if refused then return refused end
if listed and redis.call('EXISTS', thread) == 0 then return { 'MISSING' } end
local list = 'w' .. place
local lines = redis.call('HGET', thread, list) or '\n'
local _, count = string.gsub(lines, '\n', '\n')
for at = writes_from, #writes, 3 do
  local index = writes[at]
  local line = task .. ' ' .. index .. ' '
  local _, behind = string.find(lines, '\n' .. line, 1, true)
  local number = behind and string.match(lines, '^%d+', behind + 1)
  if not number then
    number, count = tostring(count), count + 1
    lines = lines .. line .. number .. ' ' .. writes[at + 1] .. '\n'
    redis.call('HSET', thread, list .. ' ' .. number, writes[at + 2])
  elseif tonumber(index) < 0 then
    redis.call('HSET', thread, list .. ' ' .. number, writes[at + 2])
  end
end
redis.call('HSET', thread, list, lines)
redis.call('PEXPIRE', thread, ttl_ms)
redis.call('PEXPIRE', order, ttl_ms)
return { 'OK' }
