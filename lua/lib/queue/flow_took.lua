-- Record that the claim of a job took of its key's rate, and after how many runs. A later claim of its task ends
-- this one, so it comes behind the claim.
local function flow_took(keys, id)
  local task, runs = string.match(id, '^(.*):(%d+)$')
  if task then redis.call('HSET', keys.owners, 'took:' .. task, runs) end
end
