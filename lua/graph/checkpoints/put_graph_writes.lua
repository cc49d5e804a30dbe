-- Add what a task wrote to the pending writes of a checkpoint. A write of a task and an index is kept as
-- it came first; one of a negative index is replaced. A repetition changes nothing.
-- KEYS thread   hash: w<place> list of writes, w<place> <number> a write; behind a full list w<place> more
--   their count, w<place> of <task> <index> a number; owner, claim, epoch, expires, length
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
--   {'LOST', epoch}    another claim has the thread, or it was given back; nothing was written
--   {'HELD', left_ms}  the caller has no claim, and another has; nothing was written
-- @include graph_refusal
-- @include graph_writes_more
-- @lasting

local refused = graph_refusal(thread, mark)
if refused then return refused end
if listed and redis.call('EXISTS', thread) == 0 then return { 'MISSING' } end
local list = 'w' .. place
local lines, known, count = redis.call('HGET', thread, list) or '\n', {}, 0
for key, number in string.gmatch(lines, '\n(%S+ %S+) (%d+)') do
  known[key], count = number, count + 1
end
local more, added = graph_writes_more(thread, list, count), {}
for at = writes_from, #writes, 3 do
  local index, data = writes[at], writes[at + 2]
  local key = task .. ' ' .. index
  -- A list that was full before this call is followed by writes that have a field for each index.
  local number = known[key] or count >= GRAPH_LINES and redis.call('HGET', thread, list .. ' of ' .. key)
  if not number or tonumber(index) < 0 then
    local next_number = number or tostring(count + more + 1)
    local line = key .. ' ' .. next_number .. ' ' .. writes[at + 1]
    local listed = known[key] or not number and count < GRAPH_LINES
    redis.call('HSET', thread, list .. ' ' .. next_number, listed and data or line .. '\n' .. data)
    if not number and listed then
      known[key], count, added[#added + 1] = next_number, count + 1, line .. '\n'
    elseif not number then
      more = more + 1
      redis.call('HSET', thread, list .. ' of ' .. key, next_number)
    end
  end
end
if #added > 0 then redis.call('HSET', thread, list, lines .. table.concat(added)) end
if more > 0 then redis.call('HSET', thread, list .. ' more', more) end
redis.call('PEXPIRE', thread, ttl_ms)
redis.call('PEXPIRE', order, ttl_ms)
return { 'OK' }
