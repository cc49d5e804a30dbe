-- Return the next job of what has its turn, a line by itself or a limit key, and the job's key. Nothing if there is none,
-- or if its line waits for another turn; 'more' as from head_next.
-- @include head_next
-- @include line_mend
local function line_next(keys, name, now)
  local first = flow_first(keys.keyed, name)
  if string.sub(name, 1, 2) == 'k:' then
    local head, key = head_next(keys, name, first, now)
    return head or first, key or name
  end
  if not first then return end
  if string.find(name, ';', 1, true) then
    line_mend(keys, name)
  elseif flow_head(keys, name) then
    flow_turn(keys, name)
  else
    return first, name
  end
end
