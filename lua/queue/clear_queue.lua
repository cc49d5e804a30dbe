-- Forget all jobs that wait in a queue, once per call. What is claimed stays, with its permits.
-- KEYS keys.queue   zset: job id -> when it is due, in ms
-- KEYS keys.keyed   zset: line, place and id of each job that has a key, in order
-- KEYS keys.heads   zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns   zset: line -> when it had its turn
-- KEYS keys.waits   zset: line -> when its rate lets it start again, in ms
-- KEYS keys.owners  hash: id -> its key and place, held:<task> -> key, later:<id> -> key,
--   took:<task> -> after how many runs it took of its key's rate, of:<task> -> that rate
-- KEYS history      hash: id of the queues' history: sweepers find another one, and queue what still waits
-- Returns
--   {'OK', deleted}  how many of the lists there were
-- @once
-- @idempotent

for _, name in ipairs(redis.call('HKEYS', keys.owners)) do
  local is_claims = string.find(name, '^held:') or string.find(name, '^took:') or string.find(name, '^of:')
  if not is_claims then redis.call('HDEL', keys.owners, name) end
end
redis.call('DEL', history)
return keep_reply({ 'OK', redis.call('DEL', keys.queue, keys.keyed, keys.heads, keys.turns, keys.waits) })
