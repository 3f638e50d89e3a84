# The migrations, as bytes in the library: build/…/store_migrations.c holds one array a file.
file(GLOB MOTLEY_MIGRATIONS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/migrations/[0-9][0-9][0-9][0-9]_*.sql)
list(SORT MOTLEY_MIGRATIONS)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MOTLEY_MIGRATIONS})
set(migration_arrays "")
set(migration_table "")
foreach(path ${MOTLEY_MIGRATIONS})
  get_filename_component(name ${path} NAME_WE)
  string(SUBSTRING ${name} 0 4 number)
  string(REGEX REPLACE "^0+" "" plain ${number})
  file(READ ${path} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND migration_arrays "static const char migration_${number}[] = {${bytes}0};\n")
  string(APPEND migration_table
    "    {${plain}, \"${name}\", migration_${number}, sizeof(migration_${number}) - 1},\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/store_migrations.c @ONLY CONTENT
"/* Made from migrations/ by store/options.cmake. */
#include \"store/migrations.h\"

@migration_arrays@
const struct store_migration store_migrations[] = {
@migration_table@};
const size_t store_migration_count = sizeof(store_migrations) / sizeof(store_migrations[0]);
")
target_sources(motley_store PRIVATE ${CMAKE_BINARY_DIR}/store_migrations.c)

# The statements (tools/sql.py): for each file of SQL a header of typed calls, and one file with the texts of all.
find_program(PYTHON3 python3 REQUIRED)
file(GLOB sql_files RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/store/*.sql)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/sql/store)
list(TRANSFORM sql_files REPLACE "(.+)" "${CMAKE_BINARY_DIR}/sql/\\1.h" OUTPUT_VARIABLE sql_made)
list(APPEND sql_made ${CMAKE_BINARY_DIR}/sql/store_sql.c)
add_custom_command(OUTPUT ${sql_made} COMMAND ${PYTHON3} tools/sql.py make ${CMAKE_BINARY_DIR}/sql ${sql_files}
  COMMENT "Generating C of store/*.sql" WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} DEPENDS ${sql_files} ${CMAKE_SOURCE_DIR}/tools/sql.py VERBATIM)
target_sources(motley_store PRIVATE ${sql_made})
target_include_directories(motley_store PRIVATE ${CMAKE_BINARY_DIR}/sql)
