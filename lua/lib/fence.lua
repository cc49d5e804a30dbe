-- Tell whether a write under `epoch` is stale: a later owner has taken the lease. No epoch, no
-- fence. An expired lease that nobody took over is still its owner's.
local function fence(lease, epoch)
  if epoch == '' then return nil end
  local current = redis.call('HGET', lease, 'epoch') or '0'
  if current == epoch then return nil end
  return { 'LOST', tonumber(current) }
end
