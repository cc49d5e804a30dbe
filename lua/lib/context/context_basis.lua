-- Return whether a context is no longer the one that a decision was made on: number and, after a space, hash.
local function context_basis(context, basis)
  local is = redis.call('HMGET', context, 'number', 'hash')
  if (is[1] or '0') .. ' ' .. (is[2] or '') == basis then return nil end
  return { 'STALE', tonumber(is[1] or 0) }
end
