# openapi.yaml, as bytes in the library.
set(MOTLEY_OPENAPI ${CMAKE_SOURCE_DIR}/api/openapi.yaml)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MOTLEY_OPENAPI})
file(READ ${MOTLEY_OPENAPI} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/api_openapi.c @ONLY CONTENT
"/* Made from api/openapi.yaml by api/options.cmake. */
extern const char api_openapi_text[];
extern const unsigned api_openapi_size;
const char api_openapi_text[] = {@bytes@0};
const unsigned api_openapi_size = sizeof(api_openapi_text) - 1;
")
target_sources(motley_api PRIVATE ${CMAKE_BINARY_DIR}/api_openapi.c)

# The page's files, compressed, as bytes in the library. Their addresses have the hash of all of them: HASH in the shell.
file(GLOB MOTLEY_WEB CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/api/web/*.html ${CMAKE_SOURCE_DIR}/api/web/*.js
  ${CMAKE_SOURCE_DIR}/api/web/*.css ${CMAKE_SOURCE_DIR}/api/web/*.svg ${CMAKE_SOURCE_DIR}/api/web/*.png
  ${CMAKE_SOURCE_DIR}/api/web/*.woff2 ${CMAKE_SOURCE_DIR}/api/web/*.json ${CMAKE_SOURCE_DIR}/api/web/*.txt
  ${CMAKE_SOURCE_DIR}/api/web/*.webmanifest)
list(SORT MOTLEY_WEB)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MOTLEY_WEB})
find_program(MOTLEY_GZIP gzip REQUIRED)
set(web_hash "")
foreach(path ${MOTLEY_WEB})
  get_filename_component(name ${path} NAME)
  file(SHA256 ${path} digest)
  string(APPEND web_hash "${name} ${digest}\n")
endforeach()
string(SHA256 web_hash "${web_hash}")
string(SUBSTRING ${web_hash} 0 16 web_hash)
set(web_arrays "")
set(web_table "")
set(number 0)
macro(motley_web_add name plain)
  execute_process(COMMAND ${MOTLEY_GZIP} -9 -n -c INPUT_FILE ${plain} OUTPUT_FILE ${CMAKE_BINARY_DIR}/web.gz
    COMMAND_ERROR_IS_FATAL ANY)
  file(SIZE ${plain} size)
  file(SIZE ${CMAKE_BINARY_DIR}/web.gz packed)
  file(READ ${CMAKE_BINARY_DIR}/web.gz bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND web_arrays "static const unsigned char web_${number}[] = {${bytes}0};\n")
  string(APPEND web_table "    {\"${name}\", web_${number}, ${packed}, ${size}},\n")
  math(EXPR number "${number} + 1")
endmacro()
# The shell names them relative to the page's own address, because a web server may have put a path before it: there is one
# shell for each number of folders that an address of the page has.
foreach(path ${MOTLEY_WEB})
  get_filename_component(name ${path} NAME)
  if(name STREQUAL "index.html")
    file(READ ${path} shell)
    set(up ".")
    foreach(folders RANGE 2)
      string(REPLACE "\"/web/HASH/" "\"${up}/web/${web_hash}/" text "${shell}")
      file(WRITE ${CMAKE_BINARY_DIR}/web-${name} "${text}")
      motley_web_add("index-${folders}.html" ${CMAKE_BINARY_DIR}/web-${name})
      string(APPEND up "/..")
    endforeach()
  else()
    motley_web_add(${name} ${path})
  endif()
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/api_web.c @ONLY CONTENT
"/* Made from api/web/ by api/options.cmake. */
#include \"api/web.h\"

@web_arrays@
const char api_web_hash[] = \"@web_hash@\";
const struct web_file api_web_files[] = {
@web_table@    {0},
};
")
target_sources(motley_api PRIVATE ${CMAKE_BINARY_DIR}/api_web.c)
