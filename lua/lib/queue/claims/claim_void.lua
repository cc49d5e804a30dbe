-- End a claim as `claim_end` does. What it took of its key's rate is there again, if its task has not begun since:
-- it has had so many runs as then.
-- @include claim_end
-- @include flow_back
local function claim_void(keys, task, runs, claimed)
  local ended, key, took, rate = claim_end(keys, task, claimed)
  if took and took == runs then flow_back(keys, key, rate) end
  return ended
end
