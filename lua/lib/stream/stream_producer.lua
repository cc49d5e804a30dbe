-- Compare a batch with what its producer has sent before; return why it is not appended, or nil.
local function stream_producer(info, field, epoch, number, last, closed)
  local known = redis.call('HGET', info, field)
  if not known then
    if number ~= 0 then return { 'GAP', 'producer', 0 } end
    return nil
  end
  local its_epoch, its_number = string.match(known, '^(%d+) (%d+)$')
  its_epoch, its_number = tonumber(its_epoch), tonumber(its_number)
  if epoch < its_epoch then return { 'LOST', string.format('%.0f', its_epoch) } end
  if epoch > its_epoch then
    if number ~= 0 then return { 'REFUSED', 'epoch' } end
    return nil
  end
  if number <= its_number then return { 'COUNTED', last, closed, string.format('%.0f', its_number) } end
  if number > its_number + 1 then return { 'GAP', 'producer', string.format('%.0f', its_number + 1) } end
end
