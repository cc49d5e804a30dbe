-- Whether a queue has limits, or had keys: what is kept of parked jobs is neither.
local function flow_is_set(flow)
  local fields = redis.call('HLEN', flow)
  if fields == 0 then return false end
  local marks = redis.call('HMGET', flow, 'parked', 'passed')
  return fields > (marks[1] and 1 or 0) + (marks[2] and 1 or 0)
end
