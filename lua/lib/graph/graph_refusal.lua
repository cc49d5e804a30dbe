-- Refuse a write into a thread that another claim has, or under a claim that was given back: what
-- began under it may come later. Without a mark, a thread that has an owner is not written either.
-- Returns the reply of a refused write, or nil.
-- @include fence
-- @include lease_left
-- @include now_ms
local function graph_refusal(thread, mark)
  local owner = redis.call('HGET', thread, 'owner')
  if mark ~= '' then
    return fence(thread, mark) or owner == '' and { 'LOST', tonumber(redis.call('HGET', thread, 'epoch')) } or nil
  end
  if not owner or owner == '' then return nil end
  local left_ms = lease_left(thread, now_ms())
  if left_ms > 0 then return { 'HELD', left_ms } end
  return nil
end
