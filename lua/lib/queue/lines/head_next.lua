-- Return the first job of the lines that stand in a limit key's, and its key. Nothing if there is none, or if `first` goes
-- before it: it is a job of the limit key's own line, and both have the place behind the name.
-- A head is dropped if its line runs a job, or has another one first. One call drops 256 at most: 'more' in place of a
-- job says that the first head is to be looked at by the next call.
-- @include line_again
-- @include line_full
local heads_left = 256

local function head_next(keys, name, first, now)
  local head = flow_first(keys.heads, name)
  while head and not (first and first < head) do
    local line = string.match(head, '([^%z]+)$')
    local current = flow_head(keys, line)
    if current == head and not line_full(keys, line, 1, now) then
      return flow_first(keys.keyed, line), line .. ';' .. name
    end
    if heads_left == 0 then return 'more' end
    heads_left = heads_left - 1
    redis.call('ZREM', keys.heads, head)
    if current ~= head then line_again(keys, line) end
    head = flow_first(keys.heads, name)
  end
end
