-- Choose what must go, the longest unused first, so that a blob of `size` fits the limits. Over a
-- trace's limits only that trace's blobs help. Gives these and some that come next, how many of
-- them must go, and whether that is enough.
-- @include blob_totals
local function blob_victims(books, trace, size, limits)
  local count, bytes = blob_totals(books.about, ':')
  local its_count, its_bytes = blob_totals(books.about, ':' .. trace)
  local function over() return count >= limits.count or bytes + size > limits.bytes end
  local function its_over() return its_count >= limits.trace_count or its_bytes + size > limits.trace_bytes end
  local function fits() return not over() and (trace == '' or not its_over()) end
  local oldest, needed, any = {}, 0, over()
  for _, id in ipairs(fits() and {} or redis.call('ZRANGE', books.use, 0, any and limits.portion + limits.spare or -1)) do
    if needed == limits.portion or fits() and #oldest >= needed + limits.spare then break end
    local old_size, old_trace = string.match(redis.call('HGET', books.about, '=' .. id) or '0 ', '(%d+) (.*)')
    if old_trace == trace or over() or fits() and any then
      oldest[#oldest + 1] = id
      if not fits() then
        needed, count, bytes = needed + 1, count - 1, bytes - old_size
        if old_trace == trace then its_count, its_bytes = its_count - 1, its_bytes - old_size end
      end
    end
  end
  return oldest, needed, fits()
end
