-- Whether only one of the two keys of a task's snapshots is there: that is what an eviction left.
local function snapshot_torn(rows, index)
  return redis.call('EXISTS', rows, index) == 1
end
