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
