-- Record that the claim of a job took of its key's rate, after how many runs, and what the rate was. A later claim
-- of its task ends this one, so it comes behind the claim.
local function flow_took(keys, id, rate)
  local task, runs = string.match(id, '^(.*):(%d+)$')
  if task then redis.call('HSET', keys.owners, 'took:' .. task, runs, 'of:' .. task, rate) end
end
