-- Tell whether a context is no longer the one that a decision was made on: number and hash.
local function context_basis(context, number, hash)
  local is = redis.call('HMGET', context, 'number', 'hash')
  if (is[1] or '0') == number and (is[2] or '') == hash then return nil end
  return { 'STALE', tonumber(is[1] or 0) }
end
