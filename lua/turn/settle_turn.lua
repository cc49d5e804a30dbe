-- Forget which tasks a task has to interrupt, once they are. A repetition finds nothing, and a later task of the
-- id has another order.
-- KEYS task   hash: order, interrupts
-- ARGV order  of the task
-- Returns
--   {'OK', settled}  1 if there were any

if redis.call('HGET', task, 'order') ~= order then return { 'OK', 0 } end
return { 'OK', redis.call('HDEL', task, 'interrupts') }
