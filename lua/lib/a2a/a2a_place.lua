-- List a task under its context, its state and a time, in the books `index`, `places` and `expiry` of its
-- scope. In `place` '=' keeps what stands there. The time '+' is the server's, and so is '-', but later
-- than all before. Returns that time in us, or nil.
-- @include a2a_books
local function a2a_place(books, id, place, ends, us)
  local was, updated = redis.call('HGET', books.places, id), nil
  local context, state, time = string.match(place, '^(%S+) (%S+) (%S+)$')
  local context_was, state_was, time_was = string.match(was or '', '^(%S+) (%S+) (%S+)$')
  if context == '=' then context = context_was end
  if state == '=' then state = state_was end
  if time == '=' then time = time_was end
  if not (context and state and time) then return nil end
  if time == '-' or time == '+' then
    local last = time == '-' and redis.call('ZREVRANGEBYLEX', books.index, '(*|*|2', '[*|*|', 'LIMIT', 0, 1)[1]
    updated = string.format('%.0f', math.max(us, last and tonumber(string.sub(last, 7, 32)) + 1 or 0))
    time = string.format('11%026.0f000', updated)
  end
  a2a_list(books, id, was, context .. ' ' .. state .. ' ' .. time, ends)
  return updated
end
