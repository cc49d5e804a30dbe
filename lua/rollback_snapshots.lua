-- Make the highest version that has an entry beginning with a prefix the latest of its task: those
-- above it are deleted.
-- KEYS[1] rows     hash: version -> row, version: -> id
-- KEYS[2] index    zset: v:version, c:version of checkpoints, i:id:version
-- KEYS[3] removal  string: the last removal's call and answer
-- ARGV[1] prefix   of an entry
-- ARGV[2] write    id of this call
-- Returns
--   {'OK', version, row}  the version that is the latest now
--   {'MISSING'}  there is none such; nothing was deleted
-- @include call_noted
-- @include call_note
-- @include snapshot_forget
-- @include snapshot_top
local rows, index, removal = KEYS[1], KEYS[2], KEYS[3]
local prefix, write = ARGV[1], ARGV[2]

local done = call_noted(removal, write)
local version = done or snapshot_top(index, prefix)
local row = version and redis.call('HGET', rows, version)
if not row then return { 'MISSING' } end
if not done then
  for _, entry in ipairs(redis.call('ZRANGEBYLEX', index, '(v:' .. version, '(v;')) do
    snapshot_forget(rows, index, string.sub(entry, 3))
  end
  call_note(removal, write, version)
end
return { 'OK', version, row }
