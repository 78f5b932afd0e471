"""What people see on the admin port: the live page, its rows and rates, and `/stalls`."""
