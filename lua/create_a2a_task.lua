-- Create an A2A task, unless there is one of its id. A repetition finds its own.
-- KEYS[1] task     hash: created, updated, context, state, status, final, document
-- KEYS[2] tasks    zset: task_id -> updated in us
-- KEYS[3] history  list: messages
-- KEYS[4] artifacts  list: what was added, in order
-- KEYS[5] push     hash: config_id -> config
-- ARGV[1] write    id of this call
-- ARGV[2] ttl_ms   milliseconds
-- ARGV[3] member   the task's id
-- ARGV[4] messages how many of the items are messages; they come first
-- ARGV[5] items    how many there are; the rest is fields
-- ARGV[6..] given  messages, artifacts, then names and values of fields in turn
-- Returns
--   {'OK'}     it is created
--   {'TAKEN'}  there is one; nothing was written
-- @include a2a_touch
local task, tasks, history, artifacts, push = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local write, ttl_ms, member, messages, items = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local given = { unpack(ARGV, 6) }

local created = redis.call('HGET', task, 'created')
if created == write then return { 'OK' } end
if created then return { 'TAKEN' } end
redis.call('HSET', task, 'created', write, unpack(given, items + 1))
redis.call('DEL', history, artifacts, push)
for i = 1, items do redis.call('RPUSH', i <= messages and history or artifacts, given[i]) end
local keys = { task = task, tasks = tasks, history = history, artifacts = artifacts, push = push }
a2a_touch(keys, member, ttl_ms)
return { 'OK' }
