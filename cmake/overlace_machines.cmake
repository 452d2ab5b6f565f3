# What the library knows of machines, machine/*.SUFFIX, as a source of a module: a prediction must not depend on where
# files lie. HEADER (MODULE/FILE under src) declares kShippedNAME, an array of TYPE: a machine and a file's text, or one
# line of it where SUFFIX ends in jsonl, as no compiler need take a literal of more than 65536 characters.
function(overlace_shipped out name suffix header type)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/machine/*.${suffix})
  set(rows "")
  foreach(file ${files})
    get_filename_component(machine ${file} NAME_WE)
    file(READ ${file} text)
    string(STRIP "${text}" text)
    if(suffix MATCHES "jsonl$")
      string(REPLACE "\n" ")json\"},\n    {\"${machine}\", R\"json(" text "${text}")
    endif()
    string(APPEND rows "    {\"${machine}\", R\"json(${text})json\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  get_filename_component(module ${header} DIRECTORY)
  string(TOLOWER ${name} stem)
  set(path ${CMAKE_CURRENT_BINARY_DIR}/generated/shipped_${stem}.cc)
  file(CONFIGURE OUTPUT ${path} @ONLY CONTENT "#include <iterator>

#include \"src/${header}\"

namespace overlace::${module} {
namespace {
constexpr ${type} kList[] = {
@rows@};
}  // namespace
const ${type}* const kShipped${name} = kList;
const int kNumShipped${name} = static_cast<int>(std::size(kList));
}  // namespace overlace::${module}
")
  set(${out} ${path} PARENT_SCOPE)
endfunction()
