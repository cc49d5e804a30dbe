-- Delete one version of a task's snapshots, or all of them.
-- KEYS[1] rows     hash: version -> row, version: -> id
-- KEYS[2] index    zset: v:version, c:version of checkpoints, i:id:version
-- KEYS[3] removal  string: the last removal's call and answer
-- ARGV[1] version  '' for all
-- ARGV[2] write    id of this call
-- Returns
--   {'OK', removed}  how many there were
-- @include call_noted
-- @include call_note
-- @include snapshot_forget
local rows, index, removal = KEYS[1], KEYS[2], KEYS[3]
local version, write = ARGV[1], ARGV[2]

local done = call_noted(removal, write)
if done then return { 'OK', tonumber(done) } end
local removed
if version == '' then
  removed = redis.call('ZLEXCOUNT', index, '[v:', '(v;')
  redis.call('UNLINK', rows, index)
else
  removed = snapshot_forget(rows, index, version)
end
if removed > 0 then call_note(removal, write, removed) end
return { 'OK', removed }
