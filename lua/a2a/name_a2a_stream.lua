-- Set the stream of an A2A task. Its life and its events stay as they are. Once per call: a name that
-- another call gave before a repetition stays.
-- KEYS task    hash: stream
-- ARGV stream  the stream's id
-- Returns
--   {'OK'}       done
--   {'MISSING'}  no such task
-- @once
-- @idempotent

if redis.call('EXISTS', task) == 0 then return { 'MISSING' } end
redis.call('HSET', task, 'stream', stream)
return keep_reply({ 'OK' })
