-- The last 16 saves of a record that has no version to compare, by the ends of their write ids. The field is short:
-- each save writes it again.
local function saves_id(write)
  return string.format('%11s;', string.sub(write, -11))
end

-- Whether a save is among the last ones.
local function saves_has(saves, write)
  return saves and string.find(saves, saves_id(write), 1, true) ~= nil
end

-- Return the field with one more save.
local function saves_with(saves, write)
  return string.sub((saves or '') .. saves_id(write), -192)
end
