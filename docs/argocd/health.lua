-- The health of a LlamaServer, for Argo CD. Ready says that the present spec is being served and never depends on
-- the objective, so a spike of traffic degrades no application.
local function condition(type)
  if obj.status ~= nil and obj.status.conditions ~= nil then
    for _, found in ipairs(obj.status.conditions) do
      if found.type == type then
        return found
      end
    end
  end
  return nil
end

local function is_true(found)
  return found ~= nil and found.status == "True"
end

local function told(found, otherwise)
  if found == nil then
    return otherwise
  end
  return found.reason .. ": " .. found.message
end

local SUSPENDED = "spec.suspend is true: engines serve on and nothing is decided"
local suspended = obj.spec ~= nil and obj.spec.suspend == true

local hs = {}
local observed = obj.status ~= nil and obj.status.observedGeneration or nil
if observed == nil or (obj.metadata.generation ~= nil and observed < obj.metadata.generation) then
  hs.status = "Progressing"
  hs.message = "the operator has not seen the present spec yet"
  return hs
end

local ready, stalled = condition("Ready"), condition("Stalled")
if is_true(stalled) then
  hs.status = "Degraded"
  hs.message = told(stalled, "")
elseif is_true(ready) then
  hs.status = "Healthy"
  hs.message = told(ready, "") .. (suspended and "; " .. SUSPENDED or "")
elseif suspended then
  hs.status = "Suspended"
  hs.message = SUSPENDED
else
  hs.status = "Progressing"
  hs.message = told(condition("Progressing"), told(ready, "the operator has said nothing yet"))
end
return hs
