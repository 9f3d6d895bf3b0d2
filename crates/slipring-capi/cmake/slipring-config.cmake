# find_package(slipring) finds the library where `cargo cinstall` has put it, wherever that was moved.
#
#   slipring::slipring           the shared library
#   slipring::slipring_static    the static one, if it was installed
get_filename_component(_slipring_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(_slipring_places lib lib64)
if(CMAKE_LIBRARY_ARCHITECTURE)
  list(APPEND _slipring_places "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
endif()
# What an earlier run found may lie below another prefix.
unset(slipring_INCLUDE_DIR CACHE)
unset(slipring_LIBRARY CACHE)
unset(slipring_STATIC_LIBRARY CACHE)
find_path(slipring_INCLUDE_DIR slipring.h PATHS "${_slipring_prefix}" PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(slipring_LIBRARY libslipring.so PATHS "${_slipring_prefix}" PATH_SUFFIXES ${_slipring_places} NO_DEFAULT_PATH)
find_library(slipring_STATIC_LIBRARY libslipring.a PATHS "${_slipring_prefix}" PATH_SUFFIXES ${_slipring_places} NO_DEFAULT_PATH)
mark_as_advanced(slipring_INCLUDE_DIR slipring_LIBRARY slipring_STATIC_LIBRARY)

if(NOT slipring_INCLUDE_DIR OR NOT slipring_LIBRARY)
  set(slipring_FOUND FALSE)
  set(slipring_NOT_FOUND_MESSAGE "slipring.h or libslipring.so is not below ${_slipring_prefix}")
else()
  if(NOT TARGET slipring::slipring)
    add_library(slipring::slipring SHARED IMPORTED)
    set_target_properties(slipring::slipring PROPERTIES
      IMPORTED_LOCATION "${slipring_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${slipring_INCLUDE_DIR}")
  endif()
  if(slipring_STATIC_LIBRARY AND NOT TARGET slipring::slipring_static)
    add_library(slipring::slipring_static STATIC IMPORTED)
    set_target_properties(slipring::slipring_static PROPERTIES
      IMPORTED_LOCATION "${slipring_STATIC_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${slipring_INCLUDE_DIR}"
      INTERFACE_LINK_LIBRARIES "pthread;dl;m;rt;gcc_s")
  endif()
endif()
unset(_slipring_prefix)
unset(_slipring_places)
