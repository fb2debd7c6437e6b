"""Is a site ready to join? A function a check; none of them changes anything."""
