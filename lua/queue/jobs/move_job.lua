-- Move a job that is due to where its priority places it. One that is put off is not due any earlier for it, nor any
-- later. A repetition finds it there.
-- KEYS keys.queue       zset: job id -> when it is due, in ms
-- KEYS keys.flow        hash: turn
-- KEYS keys.owners      hash: id -> its key and place
-- KEYS keys.keyed       zset: line, place and id of each job that has a key, in order
-- KEYS keys.heads       zset: limit key, place and line of each session's line that stands in a limit key's
-- KEYS keys.turns       zset: line -> when it had its turn
-- KEYS keys.waits       zset: line -> when it takes its turn again, in ms
-- KEYS payload          string: the job in arq's format
-- KEYS earlier_payload  string: the job of the run before, which a task that was handed off may have kept
-- ARGV id               the job's id
-- ARGV earlier          the id of that job
-- ARGV earlier_ms       int: what its priority is worth
-- ARGV since_ms         int: since when a job counts as waiting whose payload does not say so; '' to leave that
-- Returns
--   {'OK', moved}  1 if it is moved
-- @include now_ms
-- @include job_shift
-- @include line_move

local now = now_ms()
local function moves(name, its_payload)
  local shift, owner = job_shift(keys, name, its_payload, earlier_ms, since_ms, now)
  if shift == 0 then return false end
  -- First: behind it a full server lets the rest pass, which adds nothing. Else nothing of a sweeper's round could be
  -- settled. It changes no lifetime.
  redis.call('PEXPIRE', owner and keys.keyed or keys.queue, 1, 'GT')
  if owner then
    line_move(keys, name, owner, string.match(owner, '%z(.*)$') + shift)
  else
    redis.call('ZINCRBY', keys.queue, string.format('%.0f', shift), name)
  end
  return true
end
return { 'OK', (moves(id, payload) or earlier ~= id and moves(earlier, earlier_payload)) and 1 or 0 }
