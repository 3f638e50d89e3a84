# What `make install` and the packages of `make deb` hold. Units name the programs by the prefix that is installed to.
include(GNUInstallDirs)
install(TARGETS motley motley-supervisor motley-api motley-scheduler motley-agent motley-worker motley-parse motley-signer
  RUNTIME DESTINATION bin)
file(GLOB motley_units ${CMAKE_SOURCE_DIR}/deploy/*.service)
install(CODE "
  foreach(unit ${motley_units})
    get_filename_component(name \"\${unit}\" NAME)
    file(READ \"\${unit}\" text)
    string(REPLACE /usr/bin/motley \"\${CMAKE_INSTALL_PREFIX}/bin/motley\" text \"\${text}\")
    file(WRITE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/\${name}\" \"\${text}\")
  endforeach()")
foreach(part server agent)
  install(FILES debian/motley-${part}.sysusers DESTINATION lib/sysusers.d RENAME motley-${part}.conf)
endforeach()
install(FILES deploy/motley.bash DESTINATION share/bash-completion/completions RENAME motley)
install(FILES deploy/_motley DESTINATION share/zsh/vendor-completions)
install(FILES deploy/etc/up.yaml deploy/etc/agent.yaml deploy/etc/agent.env DESTINATION share/doc/motley/etc)
# Not below share/doc, where a package has large files compressed, which Prometheus does not read.
install(FILES deploy/prometheus/alerts.yml deploy/prometheus/dashboard.json DESTINATION share/motley/prometheus)
install(FILES docs/man/motley.1 DESTINATION share/man/man1)
install(FILES docs/man/motley-agent.8 docs/man/motley-api.8 docs/man/motley-scheduler.8 docs/man/motley-signer.8
  DESTINATION share/man/man8)
install(FILES README.md CHANGELOG.md LICENSE SECURITY.md DESTINATION share/doc/motley)
