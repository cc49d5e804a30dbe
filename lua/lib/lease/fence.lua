-- Refuse a write under a lease that another claim has taken. `mark` is '<epoch> <known> <claim>', or
-- empty for a write without a fence. The epoch alone would not do: a server whose history goes back
-- can give it again. An expired or released lease that nobody took over is still its claim's.
local function fence(lease, mark)
  if mark == '' then return nil end
  local epoch, claim = string.match(mark, '^(%d+) %d* (.*)$')
  local held = redis.call('HMGET', lease, 'epoch', 'claim')
  if held[1] == epoch and held[2] == claim then return nil end
  return { 'LOST', tonumber(held[1] or 0) }
end
