-- The last eight saves of a record that has no version to compare, by the ends of their write ids, which are all of
-- one length. No more, and no separators, because each save reads and writes them again.
local function saves_has(saves, write)
  return saves and string.find(saves, string.sub(write, -12), 1, true) ~= nil
end

-- Return the field with one more save.
local function saves_with(saves, write)
  return string.sub((saves or '') .. string.sub(write, -12), -96)
end
