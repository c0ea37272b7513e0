import java.util.Map;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Serves Iceberg's REST protocol with the servlet of Iceberg's own tests; its argument is the warehouse. Prints its port. */
public class RestCatalog {
    public static void main(String[] arguments) throws Exception {
        InMemoryCatalog catalog = new InMemoryCatalog();
        catalog.initialize("rest", Map.of("warehouse", arguments[0]));
        Server server = new Server();
        ServerConnector connector = new ServerConnector(server);
        connector.setHost("127.0.0.1");
        server.addConnector(connector);
        ServletContextHandler root = new ServletContextHandler(server, "/");
        root.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        server.start();
        System.out.println(connector.getLocalPort());
        System.out.flush();
        server.join();
    }
}
