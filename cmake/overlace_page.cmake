# Run with -P: writes OUT, a C++ source with the text of IN (the template of pages) as overlace::cli::kPageTemplate.
file(READ ${IN} text)
string(FIND "${text}" ")overlace_page\"" ends)
string(FIND "${text}" "@DATA@" place)
if(NOT ends EQUAL -1 OR place EQUAL -1)
  message(FATAL_ERROR "${IN} is no template: it must hold @DATA@ and not the end of its own string")
endif()
file(WRITE ${OUT} "// Written by cmake/overlace_page.cmake from ${IN}.\n#include <string_view>\n\n"
  "namespace overlace::cli {\nextern const std::string_view kPageTemplate;\n"
  "const std::string_view kPageTemplate = R\"overlace_page(${text})overlace_page\";\n}\n")
