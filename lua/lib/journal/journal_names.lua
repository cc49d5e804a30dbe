-- List the entries of a journal that a run begins with: without the chunks of large results, the ends of children,
-- the published values and the mail.
local function journal_names(journal)
  local not_read = {
    versions = true, entries = true, part = true, ['end'] = true, value = true, values = true,
    mail = true, box = true, mailed = true, due = true, asks = true,
  }
  local names = {}
  for _, name in ipairs(redis.call('HKEYS', journal)) do
    local kind = string.match(name, '^[^:]*')
    if not not_read[kind] then names[#names + 1] = name end
  end
  return names
end
