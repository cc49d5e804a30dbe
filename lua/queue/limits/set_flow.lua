-- Set limits of a queue, and take away those that have no value. Keys that wait take their turn again. Once
-- per call: what was set before a repetition stays.
-- KEYS keys.flow     hash: paused, limit, per_key, limit:<key>, key_rate, rate:<key>, turn
-- KEYS keys.owners   hash: id -> its key and place
-- KEYS keys.keyed    zset: line, place and id of each job that has a key, in order
-- KEYS keys.heads    zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns    zset: line -> when it had its turn
-- ARGV keys.channel  on which the queue's workers are woken
-- ARGV settings..    names and values, in turn; '' takes one away
-- Returns
--   {'OK', settings}  all names and values, in turn
-- Emits nothing but a sign of life on the channel
-- @include flow_turn
-- @once
-- @idempotent

for i = 1, #settings, 2 do
  if settings[i + 1] == '' then
    redis.call('HDEL', keys.flow, settings[i])
  else
    redis.call('HSET', keys.flow, settings[i], settings[i + 1])
  end
end
redis.call('PEXPIRE', keys.flow, 34560000000)
-- Limit keys first. What waits for a version comes behind all of these, and has no turn.
for _, part in ipairs({ { keys.heads, '-', '+' }, { keys.keyed, '[k:', '(k;' }, { keys.keyed, '-', '(k:' } }) do
  local list, from, to = unpack(part)
  -- More than that have their turn once a job of theirs ends, or comes.
  for _ = 1, 10000 do
    local member = redis.call('ZRANGEBYLEX', list, from, to, 'LIMIT', 0, 1)[1]
    if not member then break end
    local name = string.match(member, '^([^%z]+)')
    -- A line that stands in another has its turn there.
    if list == keys.heads or not flow_head(keys, name) then flow_turn(keys, name) end
    from = '(' .. name .. '\1'
  end
end
redis.pcall('SPUBLISH', keys.channel, '')
return keep_reply({ 'OK', redis.call('HGETALL', keys.flow) })
