# The shipped machines, machine/*.json, as a source of the library: a prediction must not depend on where files lie.
function(overlace_machines out)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/machine/*.json)
  set(rows "")
  set(count 0)
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} text)
    string(APPEND rows "    {\"${name}\", R\"json(${text})json\"},\n")
    math(EXPR count "${count} + 1")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  set(path ${CMAKE_CURRENT_BINARY_DIR}/generated/shipped_machines.cc)
  file(CONFIGURE OUTPUT ${path} @ONLY CONTENT "#include \"src/spec/machine.h\"

namespace overlace::spec {
namespace {
constexpr ShippedMachine kList[] = {
@rows@};
}  // namespace
const ShippedMachine* const kShippedMachines = kList;
const int kNumShippedMachines = @count@;
}  // namespace overlace::spec
")
  set(${out} ${path} PARENT_SCOPE)
endfunction()

# The plans that `overlace tune` measured on shipped machines, machine/*.plans.jsonl, as a source of the planner.
function(overlace_shipped_plans out)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/machine/*.plans.jsonl)
  set(rows "    {\"\", \"\"},\n")  # an array is not empty
  set(count 1)
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} text)
    string(APPEND rows "    {\"${name}\", R\"json(${text})json\"},\n")
    math(EXPR count "${count} + 1")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  set(path ${CMAKE_CURRENT_BINARY_DIR}/generated/shipped_plans.cc)
  file(CONFIGURE OUTPUT ${path} @ONLY CONTENT "#include \"src/plan/cache.h\"

namespace overlace::plan {
namespace {
constexpr ShippedPlans kList[] = {
@rows@};
}  // namespace
const ShippedPlans* const kShippedPlans = kList;
const int kNumShippedPlans = @count@;
}  // namespace overlace::plan
")
  set(${out} ${path} PARENT_SCOPE)
endfunction()
