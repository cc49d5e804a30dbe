-- Whether the end that a task is listed by is not what is known of it. Without a known end the record decides.
local function index_left_over(doc, ended)
  return not doc or doc[9] and doc[9] ~= ended
end
