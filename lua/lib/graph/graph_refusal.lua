-- Refuse a write into a thread that another claim has. Without a mark, a thread that has
-- an owner is not written either. Returns the reply of a refused write, or nil.
-- @include fence
-- @include lease_left
-- @include now_ms
local function graph_refusal(thread, mark)
  if mark ~= '' then return fence(thread, mark) end
  local owner = redis.call('HGET', thread, 'owner')
  if not owner or owner == '' then return nil end
  local left_ms = lease_left(thread, now_ms())
  if left_ms > 0 then return { 'HELD', left_ms } end
  return nil
end
