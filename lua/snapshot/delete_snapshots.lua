-- Delete one version of a task's snapshots, or all of them, once per call.
-- KEYS rows     hash: version -> row, version: -> id
-- KEYS index    zset: v:version, c:version of checkpoints, i:id:version
-- ARGV version  '' for all
-- Returns
--   {'OK', removed}  how many there were
-- @include snapshot_forget
-- @once
-- @idempotent

local removed
if version == '' then
  removed = redis.call('ZLEXCOUNT', index, '[v:', '(v;')
  redis.call('UNLINK', rows, index)
else
  removed = snapshot_forget(rows, index, version)
end
return keep_reply({ 'OK', removed })
