"""Is a site ready to join? One function per check; none of them changes anything."""
